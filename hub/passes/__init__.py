"""One pass over one target, stage by stage, and the workers that run them."""
