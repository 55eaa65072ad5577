"""One pass over one Service: gather what is known, decide, write what the decision says, remember how that went."""
