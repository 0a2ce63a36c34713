"""Turn attacks into cells, verdicts and a report: one code for registered algorithms and a user's own."""
