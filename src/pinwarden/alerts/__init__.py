"""Alerts: messages to people about what needs a decision, by webhook, Slack, Teams or e-mail.

Start with ``sender.py``. It collects what is new (``sources.py``), makes one alert of what belongs together
(``alert.py``, pure), stores it for each destination (``outbox.py``), and delivers it (``delivery.py``) until it arrived
or was tried too often. ``config.py`` reads the operator's file with the destinations.

The outbox is in the database of the gateways or the registry, so several processes send each alert once. Text of
servers is data: it is never markup, a mention or a link in a message.
"""
