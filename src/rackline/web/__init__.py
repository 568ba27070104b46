"""The page and the HTTP API: questions come in as JSON, answers go out as the JSON of `--json`."""
