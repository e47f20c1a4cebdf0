"""Keys for two teams and a read-only dashboard, as the page shows it."""

from guide_pages import Reader, blocks

PAGE, SECTION = "docs/security.md", "Keys for two teams and a read-only dashboard, in ten minutes"


def test_two_teams_and_a_dashboard_have_their_keys(tmp_path):
    (policy,) = [block for block in blocks(PAGE, SECTION) if block.kind == "toml"]
    (tmp_path / "access.toml").write_text(policy.text)
    Reader(tmp_path).follow(PAGE, SECTION)
    stored = (tmp_path / "keys").read_text()
    for name in ("dashboard", "operator"):
        key = (tmp_path / f"{name}.key").read_text().strip()
        assert key.startswith("nereid_") and key.split("_")[1] in stored and key.split("_")[3] not in stored
    # They were revoked.
    assert not any((tmp_path / f"{name}.key").read_text().split("_")[1] in stored for name in ("vision", "speech"))
