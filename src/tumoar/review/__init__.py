"""Review of a result: corrections as evidence, sampling again, approval and export."""
