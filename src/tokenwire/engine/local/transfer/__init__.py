"""KV blocks between engines: one computes a prompt and keeps its blocks, another pulls them and goes on from there.

What travels with requests is `kv_transfer_params`, with the names of vLLM's NIXL connector; how the blocks travel is a
protocol of ours over TCP (`framing`). Nothing here decides what is right: blocks are used only where their chained hash
is the one that the puller computed from its own prompt, and whatever fails ends in computing the prompt.
"""
