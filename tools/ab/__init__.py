"""ab_benchmark: paired, interleaved load on two sides, and what may be concluded from it."""
