"""Options of other transports and result backends that a deployment may still carry when it comes here."""

from __future__ import annotations

__all__ = ["FOREIGN_OPTIONS"]

#: What makes options needless here, with their names.
_NEEDLESS: dict[str, str] = {
    "leases are renewed while the worker lives, see lease_for": "visibility_timeout ack_deadline_seconds peek_lock_seconds"
    " use_lock_renewal max_lock_renewal_duration ack_modify_batch_size",
    "lost deliveries are taken back as soon as their lease ends": "unacked_restore_interval unacked_restore_throttle"
    " unacked_restore_limit",
    "what is unacked is in the table of messages": "ack_emulation unacked_key unacked_index_key unacked_mutex_key"
    " unacked_mutex_expire",
    "fanout needs nothing here": "fanout_prefix fanout_patterns sentinel_fanout_compat supports_fanout"
    " predefined_exchanges broadcast_collection capped_queue_size",
    "use table_prefix": "global_keyprefix queue_name_prefix queue_tablename message_tablename messages_collection"
    " queues_collection routing_collection",
    "every priority from 0 to 255 is served": "priority_steps",
    "priorities are a column here": "sep",
    "queues take turns": "queue_order_strategy",
    "messages of one queue and priority come first in, first out": "fifo_mode",
    "consumers are woken by the database, see polling_interval": "wait_time_seconds max_poll_seconds poll_interval_ms"
    " use_notify notify_throttle_interval_ms",
    "a claim takes what the prefetch window has room for": "bulk_max_messages fetch_message_attributes",
    "queues need no definition here": "predefined_queues sqs-creation-attributes queue_tags calc_queue_size",
    "a queue says itself when it expires: x-expires, x-message-ttl": "ttl expiration_seconds",
    "there is no cloud service involved": "region regioninfo is_secure secure port client-config sts_role_arn"
    " sts_token_timeout sts_token_buffer_time uamqp_keep_alive_interval",
    "every publish is committed before it returns": "confirm_publish",
    "a message is never given to two workers at once": "enable_exactly_once_delivery",
    "use the driver's timeouts in the URL": "socket_timeout socket_connect_timeout connect_timeout read_timeout"
    " write_timeout pool_timeout",
    "use the driver's keepalives in the URL": "socket_keepalive socket_keepalive_options socket_settings",
    "a lost connection is replaced by itself": "retry_on_timeout health_check_interval heartbeat retry_total"
    " retry_backoff_factor retry_backoff_max retry_timeout_seconds retry_policy retry_errors additional_connection_errors",
    "use pool_size": "max_connections",
    "use several hosts in the URL": "master_name sentinel_kwargs min_other_sentinels",
    "the URL says how to log in": "login_method conn_string default_database default_hostname default_port"
    " reauth_check_interval",
    "use the driver's TLS options in the URL": "ssl ssl_certfile ssl_keyfile ssl_trustfile ssl_skip_hostname_check",
    "application_name in the URL tells who is connected": "client_name",
    "there are no frames here": "channel_max frame_max on_blocked on_unblocked",
    "bodies are stored as they come": "body_encoding sqs_base64_encoding",
    "an unroutable message is dropped, as on RabbitMQ": "deadletter_queue",
    "`celery sqlqueue migrate` makes the tables": "init_extension",
    "messages are rows": "data_folder_in data_folder_out processed_folder store_processed control_folder",
    "the results of a group are always in order": "result_chord_ordered",
}

#: Each option with what makes it needless.
FOREIGN_OPTIONS = {name: reason for reason, names in _NEEDLESS.items() for name in names.split()}
