"""Any upstream that speaks OpenAI's chat completions, as an engine. Nothing is started for it."""
