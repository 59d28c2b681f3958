"""`tokenwire bench`: load on `/inference/v1/generate` of any compatible server, and what came of it in numbers."""
