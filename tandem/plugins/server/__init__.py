"""HTTP for what Tandem answers: OpenAI's interface, Tandem's own typed events, metrics and a page.

    client --request--> app --question, options--> Tandem.astream --events--> stream --SSE--> client

Only `tandem serve` imports it; it needs the extra [server].
"""
