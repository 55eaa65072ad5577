"""A fake EC2 API on loopback, for tests. Needs ``moto[ec2]`` and ``flask``; the provider does not import it."""

from hub_provider_aws.testing.fake import ACCESS_KEY, REGION, SECRET_KEY, FakeAws, Served

__all__ = ["ACCESS_KEY", "REGION", "SECRET_KEY", "FakeAws", "Served"]
