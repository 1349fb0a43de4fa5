class KVConnectorOutput:
    failed_recving: set[str]
