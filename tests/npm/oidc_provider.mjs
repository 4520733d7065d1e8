// A real OpenID provider for the tests: node oidc_provider.mjs SETTINGS.json. See tests/support/oidc_provider.py.
import { readFileSync } from 'node:fs'
import { Provider, errors } from 'oidc-provider'

const settings = JSON.parse(readFileSync(process.argv[2]))
const provider = new Provider(settings.issuer, {
  jwks: { keys: settings.keys },
  cookies: { keys: ['test'] },
  pkce: { required: () => true },
  clients: settings.clients,
  scopes: ['openid', 'offline_access', ...settings.scopes],
  claims: { openid: ['sub'], profile: ['name'], email: ['email'], groups: ['groups'] },
  conformIdTokenClaims: settings.thinIdTokens,
  findAccount: (_, id) => settings.users[id] && { accountId: id, claims: () => ({ sub: id, ...settings.users[id] }) },
  extraTokenClaims: (_, token) => ({ groups: settings.users[token.accountId]?.groups, ...settings.clientClaims[token.clientId] }),
  ttl: { AccessToken: settings.tokenSeconds, ClientCredentials: settings.tokenSeconds },
  features: {
    clientCredentials: { enabled: true },
    registration: { enabled: true },
    userinfo: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => {
        if (!settings.resources.some(known => resource === known || resource.startsWith(`${known}/`))) {
          throw new errors.InvalidTarget()
        }
        return {
          audience: resource, scope: settings.scopes.join(' '), accessTokenTTL: settings.tokenSeconds,
          accessTokenFormat: 'jwt', jwt: { sign: { alg: 'RS256' } },
        }
      },
    },
  },
})
provider.on('server_error', (_, error) => console.error(error))
provider.listen(settings.port, '127.0.0.1', () => console.log('listening'))
