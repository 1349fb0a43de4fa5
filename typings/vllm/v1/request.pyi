class Request:
    request_id: str
    prompt_token_ids: list[int] | None
    num_prompt_tokens: int
    num_computed_tokens: int
    prompt_embeds: object
    mm_features: list[object]
    lora_request: object
    cache_salt: str | None
    resumable: bool
    num_tokens: int
