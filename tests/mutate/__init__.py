"""The mutation gate: one thing changed at a time, everywhere; each must be caught, by a message that names it."""
