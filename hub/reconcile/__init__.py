"""One pass over one Service: gather what the hub has observed, decide, write the plan, remember the outcome."""
