"""The laboratory: the paper's tables as data, and what fills them in."""
