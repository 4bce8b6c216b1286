"""Places in a home that commands have no business reading: keys, logins, and what was typed. No world's home shows
them."""

from __future__ import annotations

_PLACES = """
    .ssh .gnupg .pki .local/share/pki .cert .caff .minisign .password-store .ecryptfs .Private .vaults
    .local/share/plasma-vault .local/share/keyrings .local/share/kwalletd .config/Bitwarden .config/1Password
    .config/keepassxc .config/keybase .config/op .config/sops .vault-token

    .aws .azure .kube .docker .oci .aliyun .bluemix .fly .railway .supabase .pulumi .config/gcloud .config/doctl
    .config/hcloud .config/linode-cli .config/stripe .config/netlify .config/.wrangler .wrangler .modal.toml
    .local/share/com.vercel.cli .terraformrc .terraform.d/credentials.tfrc.json .databrickscfg .config/rclone .boto
    .s3cfg .passwd-s3fs .davfs2 .smbcredentials .config/containers/auth.json

    .netrc .git-credentials .git-credential-cache .config/git/credentials .config/gh .config/hub .subversion/auth
    .pypirc .npmrc .yarnrc.yml .cargo/credentials .cargo/credentials.toml .gem/credentials .bundle/config
    .local/share/gem/credentials .composer/auth.json .config/composer/auth.json .config/pypoetry/auth.toml
    .m2/settings.xml .m2/settings-security.xml .gradle/gradle.properties .nuget/NuGet .kaggle

    .pgpass .pg_service.conf .postgresql .my.cnf .mylogin.cnf

    .mozilla .thunderbird .config/google-chrome .config/chromium .config/BraveSoftware .config/microsoft-edge
    .config/vivaldi .config/opera .config/Signal .config/Slack .config/discord .var/app snap
    .fetchmailrc .msmtprc .config/msmtp .mutt .muttrc .config/neomutt

    .huggingface/token .cache/huggingface/token .cache/huggingface/stored_tokens .ollama/id_ed25519 .config/openai
    .config/anthropic .config/io.datasette.llm .config/github-copilot .copilot .codex/auth.json .gemini .cursor
    .claude/.credentials.json .claude/backups .claude.json .local/share/opencode/auth.json
    .local/share/opencode/mcp-auth.json .aider/oauth-keys.env .aider.conf.yml .config/mini-swe-agent/.env
    .qwen/oauth_creds.json .openhands .cline .config/goose .local/share/amp .local/share/crush

    .bash_history .zsh_history .local/share/fish/fish_history .python_history .node_repl_history .psql_history
    .mysql_history .rediscli_history .viminfo
"""

CREDENTIALS = tuple(_PLACES.split())
