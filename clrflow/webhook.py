"""Tells a web service of a run's end: one POST of JSON, bounded in time, to a URL that is a secret.

The URL often holds a token, so no message names it, and redirects are not followed.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from clrflow.progress import say

TIMEOUT_S = 5.0
ATTEMPTS = 2


def notify(url: str, body: Mapping[str, Any]) -> bool:
    """POST `body` as JSON; says whether that worked, and never raises: the run's end is what it is."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        say("webhook: not told: CLRFLOW_WEBHOOK_URL is no http(s) URL; correct the Secret that it comes from")
        return False
    request = urllib.request.Request(  # noqa: S310  (the scheme was checked above)
        url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    opener = urllib.request.build_opener(_NoRedirect)
    problem = ""
    for _ in range(ATTEMPTS):
        try:
            with opener.open(request, timeout=TIMEOUT_S):
                say("webhook: told")
                return True
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code}"
        except urllib.error.URLError as error:
            problem = type(error.reason).__name__
        except (OSError, ValueError) as error:
            problem = type(error).__name__
    say(f"webhook: could not be told ({problem}); the run's end is unchanged by it")
    return False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
