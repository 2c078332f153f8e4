"""Measure how volumes and outlines change without some of the contrasts."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from tumoar.app.pipeline import Given, segment
from tumoar.app.publish import Job
from tumoar.app.watch import Watch
from tumoar.model.generative import Model
from tumoar.result.folder import add_table
from tumoar.result.parts import describe_gtv
from tumoar.result.scores import dice
from tumoar.result.segmentation import Segmentation
from tumoar.vocabulary.errors import TumoarError


def ablate_contrasts(
    whole: Segmentation, job: Job, model: Model, watch: Watch, given: Given | None = None
) -> None:
    """Segment again with every proper subset of the contrasts, and add the table to the result.

    Tumor that is `given` stays fixed. A subset may lack the contrast that shows enhancement; its GTV is the
    whole tumor and is then compared with the whole tumor.
    """
    assert job.out is not None
    case, rows = whole.case, []
    names = [c.name for c in case.contrasts]
    for size in range(len(names) - 1, 0, -1):
        for subset in combinations(range(len(names)), size):
            chosen = [names[i] for i in subset]
            try:
                part = segment(
                    case.select_channels(subset),
                    model,
                    job.config,
                    seed=job.seed,
                    given=given,
                    watch=watch,
                    trust_contrasts=True,  # names were checked with all contrasts
                )
            except TumoarError as refusal:
                watch.say(f"{'+'.join(chosen)}: {refusal.what}")
                continue
            same = replace(whole, table=part.table)
            for organ in part.table.organs:
                rows.append(
                    {
                        "contrasts": "+".join(chosen),
                        "name": organ.name,
                        "made_of": describe_gtv(organ),
                        "mean_cm3": round(part.volume(organ.name).mean, 4),
                        "dice_with_all": round(dice(part.mask(organ.name), same.mask(organ.name)), 4),
                    }
                )
    if rows:
        add_table(job.out, "ablation.tsv", rows)
        watch.say(f"{job.out.name}/ablation.tsv: {len(rows)} rows")
