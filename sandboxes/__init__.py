"""Making, driving, freezing and killing worlds: one contract, several backends. Knows no workflows, no LLMs."""
