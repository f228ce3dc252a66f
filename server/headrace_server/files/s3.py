"""Ranges of objects in S3 by ``obstore``, in a quarter of the processor time that s3fs takes.

s3fs: settings, credentials, listings ──► store of a bucket ── range ──► bytes, ETag
                                                 │ a fault, or settings that it does not have
                                                 └──► s3fs asks, and says what is wrong
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from .extras import require

#: Seconds for which s3fs asks for all of a bucket after a fault: it tells what a store wants.
_REST_S = 30.0
#: Seconds after which credentials are read again; s3fs renews them in time.
_CREDENTIALS_S = 60.0
#: Arguments of boto's client that a store takes.
_KNOWN = {"endpoint_url", "region_name"}

#: By bucket: the file system, its store (None where it can not serve), and the end of a rest.
_stores: dict[str, tuple[Any, Callable[..., Any] | None, float]] = {}
_making = threading.Lock()


def s3_range(
    system: Any, path: str, start: int, stop: int, patience_s: float
) -> tuple[memoryview, str] | None:
    """Return bytes of an object, and the ETag of the answer; None where s3fs is to ask."""
    bucket, name, version = system.split_path(path)
    with _making:  # the first requests of all threads would each make one, with its connections
        known, get, rests_until = _stores.get(bucket, (None, None, 0.0))
        if known is not system:
            get, rests_until = _store(system, bucket, patience_s), 0.0
            _stores[bucket] = system, get, rests_until
    if get is None or version or time.monotonic() < rests_until:
        return None
    try:
        answer = get(name, options={"range": (start, stop)})
        return memoryview(answer.bytes()), answer.meta["e_tag"] or ""
    except Exception:
        _stores[bucket] = system, get, time.monotonic() + _REST_S
        return None


def _store(system: Any, bucket: str, patience_s: float) -> Callable[..., Any] | None:
    """Return what asks for objects of a bucket by the settings of s3fs; None where it can not."""
    odd = (
        *(system.requester_pays, system.version_aware, system.s3_additional_kwargs),
        *(system.config_kwargs, system.client_kwargs.keys() - _KNOWN),
        not system._session_is_owned,
    )
    try:
        obstore = importlib.import_module("obstore")
        stores = importlib.import_module("obstore.store")
    except ImportError:
        return None
    if any(odd):
        return None
    client = require("fsspec.asyn", "server", "s3").sync(system.loop, system.set_session)
    region = client.meta.region_name
    signed = {} if system.anon else {"credential_provider": partial(_credentials, system)}
    store = stores.S3Store(
        bucket,
        endpoint=client.meta.endpoint_url,
        region="us-east-1" if region in (None, "aws-global") else region,
        virtual_hosted_style_request=False,
        skip_signature=bool(system.anon),
        client_options={"allow_http": True, "timeout": f"{patience_s:g}s"},
        retry_config={"max_retries": 0},
        **signed,
    )
    return partial(obstore.get, store)


def _credentials(system: Any) -> Mapping[str, Any]:
    """Return the credentials of s3fs as they are now."""
    until = datetime.now(UTC) + timedelta(seconds=_CREDENTIALS_S)
    if system.key:
        names = system.key, system.secret, system.token
    else:
        frozen = require("fsspec.asyn", "server", "s3").sync(system.loop, _frozen, system.session)
        names = frozen.access_key, frozen.secret_key, frozen.token
    access_key, secret_key, token = names
    return {
        "access_key_id": access_key,
        "secret_access_key": secret_key,
        "token": token,
        "expires_at": until,
    }


async def _frozen(session: Any) -> Any:
    return await (await session.get_credentials()).get_frozen_credentials()
