"""Error codes of the command line: usage, settings, the daemon process, and unexpected failures."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec, Exit, fatal

COMMAND: tuple[ErrorSpec, ...] = (
    ErrorSpec(
        "usage",
        400,
        "{text}",
        "Run the command with --help to see its arguments and examples.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "check_usage",
        400,
        "{text}",
        "Run `posthouse check relay --help` or `posthouse check daemon --help` to see values and examples.",
        exit=Exit.UNREACHABLE,  # 3 is UNKNOWN to a monitoring system, and 2, the usual code, CRITICAL
    ),
    ErrorSpec(
        "setting_invalid",
        400,
        "setting {name} from {source} is invalid: {reason}",
        "Run `posthouse config` to see every setting with its value and source.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "otlp_url_invalid",
        400,
        "{url} is not the URL of a trace collector",
        "Give http://HOST:PORT or https://HOST:PORT; a token goes into OTEL_EXPORTER_OTLP_HEADERS.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "config_unreadable",
        400,
        "the settings in {path} cannot be read: {reason}",
        "Repair the file (TOML, one table per area), or move it away to use the defaults.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "extra_missing",
        501,
        "{library} is required and not installed",
        "Install the posthouse extra that contains it, for example `pip install 'posthouse[console]'`.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "disk_full",
        507,
        "{path} could not be written: {reason}",
        "Free space there, or write to another disk; then run the command again.",
    ),
    ErrorSpec(
        "file_denied",
        403,
        "the system refuses access to {path}: {reason}",
        "Check its owner and mode, or give another path.",
    ),
    ErrorSpec(
        "directory_gone",
        400,
        "the current directory was removed",
        "Change to another directory and run the command again.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "text_not_utf8",
        400,
        "an argument or the text on stdin is not UTF-8",
        "Convert it first, for example with `iconv -f latin1 -t utf-8`.",
        exit=Exit.USAGE,
    ),
    ErrorSpec(
        "relay_running",
        409,
        "the relay is already running: {url} (pid {pid})",
        "Use it, or stop it with `posthouse relay down`.",
    ),
    ErrorSpec(
        "daemon_start_slow",
        504,
        "the daemon (pid {pid}) did not answer within {seconds} s",
        "It may still start; `posthouse daemon logs` shows its log.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "daemon_stop_slow",
        504,
        "the daemon (pid {pid}) did not stop within {seconds} s",
        "`posthouse daemon logs` shows its log; killing it loses no accepted message.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "relay_start_slow",
        504,
        "the relay (pid {pid}) did not answer within {seconds} s",
        "It may still start; relay.log in its directory says what it is doing.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "relay_run_unknown",
        503,
        "a relay is running there, but {path} does not say in which process",
        "It is starting or stopping: try again. A relay of an older version has no such file: stop it where it runs.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "relay_stop_slow",
        504,
        "the relay (pid {pid}) did not stop within {seconds} s",
        "Its log says what it is waiting for; killing it loses no accepted event.",
        exit=Exit.UNREACHABLE,
    ),
    ErrorSpec(
        "service_unsupported",
        501,
        "posthouse supports no service manager on {platform}",
        "Let your service manager run `posthouse daemon up --foreground` or `posthouse relay up`; a daemon must not be "
        "restarted after exit code 4.",
        exit=Exit.USAGE,
    ),
    fatal(
        "internal",
        500,
        "unexpected failure: {reason}",
        "This is a bug in posthouse: please report it with the log.",
    ),
)
