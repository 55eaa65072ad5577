"""A random world for the planner of allocations, and a judge that knows the truth."""
