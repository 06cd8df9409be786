"""One block of a model run alone: what it makes of given hidden states, at some positions."""
