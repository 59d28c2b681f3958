"""Token ids to text, and text to messages: detokenizer, stop strings, token strings of logprobs, the message parser.

Knows tokenizers only through `vocabulary.TokenSource`, and neither engine nor HTTP. Everything works in pieces: any
grouping of the ids gives the same text and message, and what is known between two pieces is a small plain state.
"""
