"""What the rooms agree on: sound, requests, events, errors, messages, the pool. It imports nothing of ours."""
