"""Skills: folders with instructions that a model takes up when it needs them, and that narrow what it may then do."""
