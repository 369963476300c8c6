"""GET /load, GET /server_info and GET /tokenizer_info."""

from __future__ import annotations

from lsv.engine.client import Client
from lsv_api.admin.records import EngineInfo, ServerInfo, ServerLoad, TokenizerInfo
from lsv_api.http.context import Exchange
from lsv_base.version import __version__


async def show_load(exchange: Exchange) -> ServerLoad:
    return ServerLoad(server_load=exchange.api.traffic.running)


async def show_server(exchange: Exchange) -> ServerInfo:
    clients = dict.fromkeys(exchange.api.service.clients.values())
    return ServerInfo(version=__version__, models=[_describe(client) for client in clients])


async def show_tokenizer(exchange: Exchange) -> TokenizerInfo:
    """``?model=NAME`` chooses among several models. Raises ``ModelNotFound``."""
    client, _ = exchange.api.service.route(exchange.request.args.get("model"), exchange.viewer)
    tokenizer = client.tokenizer
    template = exchange.api.options.chat_template
    return TokenizerInfo(
        model=client.config.served_names[0],
        vocab_size=tokenizer.vocab_size,
        model_max_length=client.admission.max_model_len,
        special_tokens=dict(tokenizer.special_tokens),
        bos_token=tokenizer.special_tokens.get("bos_token"),
        eos_token=tokenizer.special_tokens.get("eos_token"),
        bos_token_id=tokenizer.frame.bos,
        eos_token_ids=list(tokenizer.eos_ids),
        chat_template=tokenizer.template_source(template) if tokenizer.has_chat_template or template else None,
    )


def _describe(client: Client) -> EngineInfo:
    config = client.config
    return EngineInfo(
        model=config.served_names[0],
        fingerprint=config.fingerprint(),
        architecture=config.architecture,
        tasks=list(client.admission.pooler.tasks),
        platform=config.platform,
        attention=config.attention,
        dtype=config.dtype,
        quantization=config.quantization,
        kv_dtype=config.kv_dtype,
        block_size=config.block_size,
        num_blocks=None if client.fit is None else client.fit.num_blocks,
        max_model_len=client.admission.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_queue=config.max_queue,
        max_logprobs=config.max_logprobs,
        prefix_caching=config.prefix_caching,
        chunked_prefill=config.chunked_prefill,
        policy=config.policy,
        executor=config.executor,
        tensor_parallel=config.topology.tensor,
        pipeline_parallel=config.topology.pipeline,
        replicas=config.topology.data,
        drafter=None if config.drafts is None else config.drafts.drafter,
        grammars=config.grammars,
        sleep_mode=config.sleep_mode,
    )
