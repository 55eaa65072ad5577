"""Writing a plan to the hub cluster: create, update, delete, with fencing and fairness."""
