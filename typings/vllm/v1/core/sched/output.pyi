class KVConnectorBlockState:
    req_ids: set[str]
    def get_block_ids(self, req_id: str) -> tuple[list[int], ...] | None: ...

class SchedulerOutput:
    num_scheduled_tokens: dict[str, int]
    kv_connector_block_state: KVConnectorBlockState | None
