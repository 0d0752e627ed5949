from millstream.server.execution.client_pause import Pause

class RequestRunner:
    pause: Pause | None
