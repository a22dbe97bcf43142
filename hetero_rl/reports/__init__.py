"""Reports as values, as JSON and as self-contained pages. Standard library only; pure functions."""
