"""Models in the styles in which people write GPT-2 from scratch, each for the starter adapter of its name."""
