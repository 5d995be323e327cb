"""``voicechat bench``: figures taken at the client, over real transports, each with p50, p95 and its count."""
