// nextflow run recipes/main.nf --raw RAW --out OUT
params.raw = null
params.out = null

process participant {
    memory '5 GB'
    cpus 1
    input: val label
    output: val label
    script: "tumoar cohort ${params.raw} ${params.out} participant --participant-label ${label} --max-memory 4 || [ \$? -eq 8 ]"
}

process group {
    input: val labels
    script: "tumoar cohort ${params.raw} ${params.out} group"
}

workflow {
    subjects = Channel.fromPath("${params.raw}/sub-*", type: 'dir').map { it.name - 'sub-' }
    group(participant(subjects).collect())
}
