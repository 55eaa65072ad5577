"""The hub beside a client-go controller and a bare client, on the same work; see docs/performance.md."""
