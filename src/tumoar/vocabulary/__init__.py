"""The words of the field as data: labels, contrasts, settings, and what a refusal says."""
