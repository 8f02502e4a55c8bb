"""OpenAI-compatible HTTP gateway in front of the inference server (not written yet).

Will hold chat and completion routes with server-sent events, API keys, rate limits, routing over
several servers and a small web page, all on top of `blockdiff_client`. Will never import torch,
the engine, or anything that loads weights.
"""
