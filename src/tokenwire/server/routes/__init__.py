"""One file per family of routes; each has a list `ROUTES` that the table collects."""
