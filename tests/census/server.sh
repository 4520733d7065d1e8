# A small MCP server in POSIX sh: `sh server.sh NAME KIND`. It starts in a millisecond, so a test can have hundreds.
name=$1 kind=$2
case $kind in
  crash) echo "cannot start" >&2; exit 7 ;;
  hang) while :; do read -r line || sleep 1000; done ;;
  flood) while :; do echo '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'; done ;;
  huge) read -r line; printf '{"jsonrpc":"2.0","id":0,"result":"'; while :; do printf '%01000000d' 0; done ;;
esac
answer() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
while IFS= read -r line; do
  id=${line#*\"id\":}
  id=${id%%[,\}]*}
  case $line in
    *'"method":"initialize"'*)
      answer '"result":{"protocolVersion":"2025-06-18","serverInfo":{"name":"'"$name"'","version":"1.0.0"},"capabilities":{"tools":{}}}' ;;
    *'"method":"tools/list"'*)
      case $kind in
        lying) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":{"not":"a list"}}}\n' "$id" ;;
        *) answer '"result":{"tools":[{"name":"search_'"$name"'","description":"Search the notes of '"$name"'.","inputSchema":{"type":"object"}},{"name":"list_files","description":"List the files of a folder that the user has opened in the editor before.","inputSchema":{"type":"object","properties":{"path":{"type":"string"}}}}]}' ;;
      esac ;;
    *'"id":'*) answer '"error":{"code":-32601,"message":"no such method"}' ;;
  esac
done
