"""Checks any GPT-2 implementation against Hugging Face's, through a small subject protocol.

Run it with ``pytest conformance --subject MODULE[:ATTR]``; the protocol is in ``conformance.subject``.
"""

DEFAULT_SUBJECT = "scratch_gpt.adapter"
