"""The fake's own paths, for tests that run it as a process: none of them is in the log, and none needs a token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

if TYPE_CHECKING:
    from hub_provider_brightbox.testing.fake import BrightboxFake

OF_FAKE: Final = ("life", "latency", "shuffled")
OF_ACCOUNT: Final = ("reads", "lag", "limit", "reverse_dns", "certificates")
HELP: Final = """\
GET /fake/state             objects by collection, and the requests served
POST /fake/fail             {"fault": "error", "times": 1, "method": "", "path": ""}; times null = until healed
POST /fake/heal             ends all faults
POST /fake/set              {"latency": 0.1, ...}: life, latency, shuffled, reads, lag, limit, reverse_dns, certificates
POST /fake/servers          {"count": 2} makes servers, and answers with their ids
DELETE /fake/servers/ID     the server is gone
"""


async def control(fake: BrightboxFake, request: web.Request) -> web.Response:
    """Serve one of the paths in :data:`HELP`."""
    text = await request.text()
    body: dict[str, Any] = json.loads(text) if text else {}
    found: Any = {}
    match request.method, request.match_info["path"].split("/"):
        case "GET", ["state"]:
            log = [{"method": row.method, "path": row.path, "body": row.body, "status": row.status} for row in fake.log]
            found = {"objects": fake.account.objects, "log": log}
        case "POST", ["fail"]:
            name = body.pop("fault")
            fake.fail(name, **body)
        case "POST", ["heal"]:
            fake.heal()
        case "POST", ["set"]:
            for key, value in body.items():
                if key not in OF_FAKE + OF_ACCOUNT:
                    return web.Response(status=404, text=HELP)
                setattr(fake if key in OF_FAKE else fake.account, key, value)
        case "POST", ["servers"]:
            found = [fake.account.add_server()["id"] for _ in range(body.get("count", 1))]
        case "DELETE", ["servers", id_]:
            fake.account.remove_server(id_)
        case _:
            return web.Response(status=404, text=HELP)
    return web.Response(text=json.dumps(found), content_type="application/json")
