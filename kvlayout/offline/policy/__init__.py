"""What an engine makes of a model: one file a range of versions, as data and small functions, and what they share."""
