"""Texts with secrets in every form, and texts that only resemble them. Generated, so that no secret scanner takes this file for a leak."""

import base64
import html
import json
import random
import string
import urllib.parse

import yaml

DRAW = random.Random(33)


def letters(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """At random; with a digit, as tokens have."""
    return "".join(DRAW.choices(alphabet, k=count - 1)) + DRAW.choice("23456789")


HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits
# tokens that are known by their prefix: the whole is the secret
TOKENS = {
    "openai": f"sk-{letters(32)}",
    "openai project": f"sk-proj-{letters(32)}",
    "stripe": f"sk_live_{letters(24)}",
    "stripe restricted": f"rk_test_{letters(24)}",
    "stripe hook": f"whsec_{letters(32)}",
    "github": f"ghp_{letters(36)}",
    "github app": f"ghs_{letters(36)}",
    "github fine-grained": f"github_pat_{letters(22)}_{letters(30)}",
    "gitlab": f"glpat-{letters(20)}",
    "hugging face": f"hf_{letters(34)}",
    "google oauth": f"ya29.{letters(60)}",
    "google refresh": f"1//0{letters(40)}",
    "google client": f"GOCSPX-{letters(28)}",
    "google api": f"AIza{letters(35)}",
    "sendgrid": f"SG.{letters(22)}.{letters(43)}",
    "docker": f"dckr_pat_{letters(27)}",
    "vault": f"hvs.{letters(24)}",
    "pypi": f"pypi-{letters(40)}",
    "pypi short": f"pypi-{letters(12)}",
    "npm": f"npm_{letters(36)}",
    "slack bot": f"xoxb-{letters(12)}-{letters(24)}",
    "slack app": f"xapp-1-{letters(11)}-{letters(24)}",
    "aws id": f"AKIA{letters(16, UPPER)}",
    "twilio": f"SK{letters(32, HEX)}",
    "mailgun": f"key-{letters(32, HEX)}",
    "databricks": f"dapi{letters(32, HEX)}",
    "digitalocean": f"dop_v1_{letters(64, HEX)}",
    "shopify": f"shpat_{letters(32, HEX)}",
    "grafana": f"glsa_{letters(32)}",
    "nvidia": f"nvapi-{letters(40)}",
    "xai": f"xai-{letters(40)}",
    "perplexity": f"pplx-{letters(40)}",
    "tailscale": f"tskey-auth-{letters(16)}-{letters(24)}",
    "supabase": f"sb_secret_{letters(30)}",
    "telegram": f"123456789:AA{letters(33)}",
    "jwt": f"eyJ{letters(20)}.eyJ{letters(30)}.{letters(43)}",
    "pem": f"-----BEGIN PRIVATE KEY-----\n{letters(64)}\n{letters(40)}\n-----END PRIVATE KEY-----",
    "openssh": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{letters(64)}\n-----END OPENSSH PRIVATE KEY-----",
}
# {} is the secret
FORMS = {
    "slack hook": "posted to https://hooks.slack.com/services/{}",
    "discord hook": "https://discord.com/api/webhooks/{} answered 204",
    "old discord hook": "https://discordapp.com/api/webhooks/{}",
    "teams hook": "https://example.webhook.office.com/webhookb2/{}",
    "zapier hook": "https://hooks.zapier.com/hooks/catch/{}",
    "telegram bot": "https://api.telegram.org/bot{}/getMe",
    "address": "https://anna:{}@data.example/reviews.csv",
    "database": "postgresql+psycopg://anna:{}@db.example:5432/mlflow",
    "redis": "redis://:{}@cache.example:6379/0",
    "token as user": "https://{}@git.example/reviews.git",
    "address in a query": "http://proxy.example/?to=https%3A%2F%2Fanna%3A{}%40data.example",
    "query": "https://data.example/x?page=2&token={}&format=csv",
    "signed": "https://data.example/x?X-Amz-Signature={}",
    "sas": "https://account.blob.example/x?sv=1&sig={}",
    "mysql": "+ mysql -u anna -p{} reviews",
    "mysqldump": "mysqldump --host db.example -p{} reviews > all.sql",
    "mysql words": "['mysql', '-u', 'anna', '-p{}']",
    "sshpass": "sshpass -p {} ssh anna@host",
    "sshpass joined": "sshpass -p{} ssh anna@host",
    "sshpass words": '["sshpass", "-p", "{}", "ssh", "host"]',
    "curl": "curl -u anna:{} https://data.example",
    "curl user": "curl --user 'anna:{}' https://data.example",
    "redis-cli": "redis-cli -h cache.example -a {} ping",
    "docker login": "docker login -u anna -p {} registry.example",
    "ldap": "ldapsearch -x -D cn=anna -w {} -b dc=example",
    "openssl": "openssl rsa -in key.pem -passin pass:{}",
    "option": "fetch --password {} --all",
    "option joined": "fetch --api-key={} --all",
    "option words": "['fetch', '--password', '{}']",
    "netrc": "machine data.example login anna password {}",
    "netrc lines": "machine data.example\n  login anna\n  password {}\n",
    "shell": "export DB_PASSWORD={}",
    "shell quoted": "PGPASSWORD='{}' psql -h db.example",
    "python": 'PASSWORD = "{}"',
    "dictionary": "{{'user': 'anna', 'password': '{}'}}",
    "json": '{{"user": "anna", "client_secret": "{}"}}',
    "json in json": '"{{\\"api_key\\": \\"{}\\"}}"',
    "html": "<td>{{&quot;password&quot;: &quot;{}&quot;}}</td>",
    "yaml": "database:\n  user: anna\n  password: {}\n",
    "toml": 'secret_key = "{}"',
    "ini": "aws_secret_access_key = {}",
    "xml": "<user>anna</user><password>{}</password>",
    "ado": "Server=db.example;User Id=anna;Password={};",
    "azure": "AccountName=anna;AccountKey={};EndpointSuffix=core",
    "bearer": "Authorization: Bearer {}",
    "basic": "authorization: Basic {}",
    "cookie": "Set-Cookie: session={}",
    "api key header": "X-Api-Key: {}",
    "token header": "PRIVATE-TOKEN: {}",
    "form": "grant_type=password&username=anna&password={}",
}
# by the names of variables; some tell nothing
VARIABLES = {
    "HF_TOKEN": letters(20),
    "DB_PASS": "geheim",
    "PGPASSWORD": 'p@ss w/rd\'4711 "x" & <y>',
    "AWS_SECRET_ACCESS_KEY": f"{letters(20)}/{letters(10)}+{letters(8)}",
    "WANDB_API_KEY": letters(40, HEX),
    "GITLAB_PAT": letters(20),
    "SERVICE_KEY": "k3y-of-service",
    "CLIENT_SECRET": "sesam öffne dich ß",
    "REGISTRY_AUTH": base64.b64encode(b"anna:geheim-12345").decode(),
    "SENTRY_DSN": f"https://{letters(32, HEX)}@sentry.example/4",
    "SLACK_WEBHOOK": f"https://hooks.slack.com/services/T{letters(8)}/B{letters(8)}/{letters(24)}",
    "JWT": f"{letters(20)}.{letters(30)}",
    "DATABASE_URL": "mysql://anna:geheim99@db.example/reviews",
    "SMTP_LOGIN": "anna:Vogel-77-Haus",
    "SECRETVALUE": "correcthorsebattery",
    "ODD_SECRET": "w\x1bx\\y'7\"é-geheim",
    "MAILER": f"{letters(9)}-{letters(9)}",
    "THING": letters(16),
    "PHRASE": "correct/horse battery staple is long",
    "CARD": "4929 1234 8871 4711 0042",
    "SERVICE_ACCOUNT": json.dumps({"type": "service_account", "private_key": letters(40), "client_email": "a@b.example"}),
    "TRUST": f"-----BEGIN CERTIFICATE-----\n{letters(64)}\n-----END CERTIFICATE-----",
}
HARMLESS_VARIABLES = {
    "HOME": "/home/anna",
    "USER": "annabelle",
    "HOSTNAME": "node1234.cluster.example",
    "PATH": "/usr/local/bin:/usr/bin",
    "SLURM_JOB_ID": "48151623",
    "SLURM_JOB_NODELIST": "gpu-node[0001-0004]",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "OMP_NUM_THREADS": "1",
    "SORT_KEY": "accuracy",
    "STAGE": "production",
    "MODEL": "bert-base-uncased",
    "PROJECT": "sentiment",
    "DEBUG": "true",
    "ROOT_FOLDER": "/",
    "DATE": "2026-11-24",
    "RELEASE": "v2.13.1",
    "MLFLOW_TRACKING_URI": "http://tracking.example:5000",
    "GIT_COMMIT": letters(40, HEX),
    "SSH_KEY": "/home/anna/.ssh/id_ed25519",
    "MAX_TOKENS": "512",
    "TOKENIZERS_PARALLELISM": "false",
    "KEYBOARD": "de-latin1",
    "NODE": "node-0042",
    "LD_PRELOAD": "/usr/lib/libjemalloc.so.2",
    "DISPLAY": "localhost:10.0",
}
HARMLESS = [
    "2026-11-24 16:21:03,123 step 512 of 90000, loss 0.4812, 1750.69 examples/s, accuracy 0.512",
    "results/runs/sentiment/training/checkpoints/step-00000512/model.safetensors",
    f"sha256 {letters(64, HEX)}  commit {letters(40, HEX)}  uuid 123e4567-e89b-12d3-a456-426614174000",
    "https://host:8080/a@b git+https://github.com/o/r@v1 ssh://git@github.com/o/r postgresql://anna@host/db sqlite:////tmp/x@y",
    'pad_token = "[PAD]"; unk_token: "<unk>"; additional_special_token="<extra_id_0>", eos_token_id=50256',
    "def connect(password: str | None = None, token=token, key=lambda pair: pair[1])",
    "token = os.environ['HF_TOKEN']; password = settings.password; secret=get_secret()",
    'RUN_KEY = "pipeline.run_key"; sort_key: accuracy, tokens: 900, max_new_tokens=512, passes=3, patience: 5, path=here',
    "the key: a word; authors: many; a token of thanks; compass=north; train.learning_rate=3e-05",
    "srun -p gpu --gpus 4 python train.py -p 5 --processes 2; mysql 8.0 is installed; docker pull image:latest",
    "Password required for anna. The secret of a good model is data; keys: 3, values: 4.",
    "annabelle trains bert-base-uncased on node1234.cluster.example in production, true, /home/anna/data",
    "job 48151623 on gpu-node[0001-0004] sees GPUs 0,1,2,3,4,5,6,7; OMP_NUM_THREADS=1; v2.13.1 of 2026-11-24",
    'File "/usr/lib/python3.12/json/decoder.py", line 355, in raw_decode: KeyError: "label_names"',
    "SGD(lr=0.1) SK-learn 1.5.2, hf_hub_download, ghost, sk-learn-contrib, MNIST.train.images, pypi-server, npm_config",
    "train.task.arguments.class_weights={\"spam\": 2.0} data.columns={\"text\": \"review\"} 12:30:45 10.0.0.1:5432",
    "Warnung: die Prüfung der Schlüssel ist fertig; 100 %|██████████| 5/5 [00:01<00:00,  4.2it/s]",
]  # fmt: skip


def texts_with_secrets() -> dict[str, tuple[str, str]]:
    """By name: the text, and the secret in it that must not be seen."""
    found = {name: (f"sent {token} to the server", token.splitlines()[len(token.splitlines()) // 2]) for name, token in TOKENS.items()}
    for name, form in FORMS.items():
        secret = letters(24)
        found[name] = (form.format(secret), secret)
    return found


def written(value: str) -> dict[str, str]:
    """A value as a program may print it."""
    return {
        "plain": value,
        "json": json.dumps({"x": [value]}),
        "json with letters": json.dumps({"x": value}, ensure_ascii=False),
        "json in json": json.dumps(json.dumps({"x": value})),
        "repr": repr({"x": value}),
        "ascii": ascii((value,)),
        "bytes": repr(value.encode()),
        "yaml": yaml.safe_dump({"x": value}),
        "yaml with letters": yaml.safe_dump({"x": [value]}, allow_unicode=True),
        "narrow yaml": yaml.safe_dump({"x": value}, width=20, default_style="'"),
        "html": f"<td>{html.escape(value)}</td>",
        "jinja": f"<td>{html.escape(value).replace('&#x27;', '&#39;').replace('&quot;', '&#34;')}</td>",
        "address": f"https://data.example/x?q={urllib.parse.quote(value, safe='')}",
        "form": urllib.parse.urlencode({"x": value}),
        "base64": base64.b64encode(value.encode()).decode(),
        "base64 for addresses": base64.urlsafe_b64encode(value.encode()).decode().rstrip("="),
        "base64 of user and value": base64.b64encode(f"anna:{value}".encode()).decode(),
        "base64 of more": base64.b64encode(json.dumps({"k": value}).encode()).decode(),
        "hexadecimal": value.encode().hex(),
        "shell": f"+ run '{value}'" if "'" not in value else "+ run '" + value.replace("'", "'\"'\"'") + "'",
        "error": f"ValueError: cannot connect with {value!r}",
    }


def remains_of(value: str) -> set[str]:
    """Pieces whose appearance in a text gives the value away, in any of these ways of writing."""
    longest = (
        max(value.split(), key=len) if " " in value and "\n" not in value else value.strip().splitlines()[len(value.splitlines()) // 2]
    )
    longest = value if longest.isdigit() else longest  # four digits are in many digests
    raw = longest.encode()
    escaped = {json.dumps(longest)[1:-1], json.dumps(longest, ensure_ascii=False)[1:-1], repr(longest)[1:-1], ascii(longest)[1:-1]}
    return escaped | {
        longest,
        raw.hex(),
        urllib.parse.quote(longest, safe=""),
        base64.b64encode(raw)[:-4].decode() if len(raw) > 8 else longest,
    }
