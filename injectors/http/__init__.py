"""The injector that takes records from requests over HTTP (section 5.2). See docs/http.md."""

from millwheel.injectors.http.gateway import HttpGateway, HttpSettings
from millwheel.injectors.http.refusals import HttpRefusal

__all__ = ["HttpGateway", "HttpRefusal", "HttpSettings"]
