"""On the path of programs that tests start under `--loop uvloop`: their loops are uvloop's, too."""

import asyncio
import os

if os.environ.get("RAMIFY_TEST_LOOP") == "uvloop":
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
