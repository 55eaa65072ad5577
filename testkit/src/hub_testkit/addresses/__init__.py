"""Reserved addresses for tests: the conformance rules of an AddressProvider, and a simulated cloud with a provider."""
