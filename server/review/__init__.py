"""The review page: a local web page on which a person sees the gates, what blocks each, the evidence, and decides."""
