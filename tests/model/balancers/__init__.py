"""Model of the load balancer part: one Service, two writers that take turns, and a cloud whose lists lag behind."""
