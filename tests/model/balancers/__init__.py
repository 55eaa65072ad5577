"""Model of the load balancer part: one Service, several writers of which one may write, and a faulty cloud."""
