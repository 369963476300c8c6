"""Requests that two servers share: one computes the prompt, the other answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lsv.config import Transfers
from lsv.transports.exchange import join_address, split_address
from lsv_api.http.context import Served
from lsv_api.http.failures import Unsupported
from lsv_api.records.requests import GenerationRequest, TransferParams
from lsv_base.errors import BadRequest

_FIELD = "kv_transfer_params"


class Handover(NamedTuple):
    """This server's part in a request."""

    peer: str = ""
    """The server that computes the prompt."""
    pending: bool = False
    """Whether that has not answered yet."""
    answer: Mapping[str, Any] | None = None
    """What the one that goes on is to be told."""


def read_handover(body: GenerationRequest, served: Served) -> Handover:
    """What a request says of other servers. Raises ``BadRequest`` for a part that this server does not play, and for
    producers that its operator has not named: no request makes it connect anywhere else.
    """
    params = body.kv_transfer_params
    if params is None or not (params.do_remote_decode or params.do_remote_prefill):
        return Handover()
    offload = served.client.config.offload
    transfers = None if offload is None else offload.transfers
    if params.do_remote_decode and params.do_remote_prefill:
        raise BadRequest(f"{_FIELD}: give do_remote_decode or do_remote_prefill, not both", param=_FIELD)
    if params.do_remote_decode:
        return Handover(answer=_hand_on(body, transfers))
    return Handover(peer=_find_peer(body, params, transfers), pending=bool(params.remote_prefill_pending))


def _hand_on(body: GenerationRequest, transfers: Transfers | None) -> Mapping[str, Any]:
    if transfers is None or not transfers.produces:
        raise Unsupported(
            f"{_FIELD}: this server hands nothing on; start it with --kv-role producer or both, or leave it out",
            param=_FIELD,
        )
    if body.stream:
        raise BadRequest(f"{_FIELD}: do_remote_decode is answered at the end; leave stream out", param=_FIELD)
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": join_address(transfers.host, transfers.port),
        "remote_block_ids": [],  # contents are found by what they are of
        "remote_host": transfers.host,
        "remote_port": transfers.port,
    }


def _find_peer(body: GenerationRequest, params: TransferParams, transfers: Transfers | None) -> str:
    if transfers is None or not transfers.consumes:
        raise Unsupported(
            f"{_FIELD}: this server fetches nothing; start it with --kv-role consumer or both, or leave it out",
            param=_FIELD,
        )
    if body.use_beam_search:
        raise BadRequest(f"{_FIELD} can't be combined with use_beam_search: leave it out", param=_FIELD)
    host, port = params.remote_host or "", params.remote_port
    try:
        peer = join_address(*split_address(join_address(host, port if isinstance(port, int) else int(port or ""))))
    except ValueError:
        raise BadRequest(
            f"{_FIELD}: do_remote_prefill needs remote_host and remote_port, as the producer's answer has them",
            param=_FIELD,
        ) from None
    if peer not in transfers.peers:
        raise BadRequest(f"{_FIELD}: {peer[:80]} is not listed in this server's --kv-peers", param=_FIELD)
    return peer
